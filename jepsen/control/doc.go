// Package control owns the cluster under test: real `penstock server` processes, each in its own network namespace with its
// own address, each on its own two loop-mounted file systems (data, dead letters).
//
// It promises that everything it makes carries the run's name (namespaces and links `pj-RUN-…`, mounts and images under the
// work directory), that it is removed in reverse order, that leftovers of an earlier run are refused at start with the
// remedy (`jepsen clean`), and that the processes end with the harness. It touches no address outside its own namespaces.
//
// Its second driver (Compose) works on the containers of a Compose project that runs already, through the engine's command
// line; it makes and removes nothing.
//
// It injects nothing by itself: package nemesis decides what to do to the processes, volumes and links offered here.
package control
