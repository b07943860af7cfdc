// Command penstock is the whole product in one binary: the server, the development cluster, and the verbs that talk to a
// cluster over its HTTP API. The verbs are thin: what they do is in node and in internal/client.
//
// Data goes to standard output, talk to standard error. Exit codes: 0 ok, 1 failed, 2 usage, 3 damage found, 4 unknown
// outcome; of a server also 10 disk fault, 11 foreign, wiped or restored directory, 12 directory in use, 13 format too
// new, 14 drain failed.
package main

import (
	"context"
	"os"
)

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.run(context.Background(), os.Args[1:]))
}
