// Package nemesis breaks things: processes, power, disks, files, links, destinations.
//
// It promises that each activation is confirmed by what was seen to happen (an exit, a stopped process, a refused write,
// packets counted, injected calls in a trace), never by the request alone; that everything it did is undone at its end; and
// that the plan follows from the seed. A damaging kind (damage, lost disk) acts alone and on one node, after all nodes were
// healthy, since that is what P2 promises to survive.
package nemesis
