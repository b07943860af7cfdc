// Package e2e proves the product from outside: real penstock processes on loopback, real disks, real sockets, killed with
// real signals. It owns the harness for that (harness_*_test.go) and one test per claim; the tests that carry a case's
// number (TestB01...) are of the reports the product answers.
//
// It uses the public surface and nothing else of the product but its client. It holds no product code.
package e2e
