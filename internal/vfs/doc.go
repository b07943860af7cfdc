// Package vfs is the file system that everything durable in Penstock is
// written through, so that tests can put a crashable or a failing one in its
// place.
//
// It owns the interface, the operating system's implementation ([OS]) and the
// helper for small files that are replaced whole ([WriteFileAtomic]). The
// sub-package memfs keeps files in memory and can be cloned as a power cut
// would leave them; errfs wraps any FS and makes chosen operations fail, fall
// short or hang.
//
// It promises what its methods say about durability and no more: it never
// retries, never buffers, and never turns an error into a log line. It knows
// no file format.
package vfs
