// Package access says who may do what: tokens, the roles they hold, and the grants that travel with a request to the node that
// carries it out.
//
// It promises that a token is kept and compared as a hash only, in constant time; that a deny always wins over an allow, so that
// adding one never widens what a token may do; that a table is replaced whole or not at all; and that no error and no log line
// of it holds a token or a hash. It knows no route and answers no request: node/api asks it, and cluster asks it again through
// node (Gate.Admit) where a request is carried out. It starts no goroutine.
package access
