// Package dlq is the dead-letter volume of one node: JSONL files that an operator can read, back up and mend.
//
//	DIR/LOCK                          held by the one process that owns the volume (flock)
//	DIR/VOLUME                        format version and node id
//	DIR/active.jsonl                  records are appended here
//	DIR/sealed-0000000000000001.jsonl full files, in order of number, never appended to again
//	DIR/quarantine.jsonl              lines that are no records, byte for byte, mode 0600
//	DIR/*.jsonl.tmp                   a rewrite that did not finish; removed at start
//
// It owns these files, the record's format (docs/format/deadletter.md) and the bounds of the volume. It promises:
//   - Append returns nil only when the records, and the name of their file, are durable (I8).
//   - A record that was acknowledged goes only when the caller says that it is resolved, or when a discard of it was committed
//     (overflow: drop_oldest). At its bound a volume refuses otherwise, and takes again when there is room.
//   - A rewrite (redelivery counts, resolved records, merged files) leaves the old file or the new one at every point of a crash,
//     and every other record byte for byte.
//   - At start a non-empty active file is sealed. A torn last line never merges with the next record. Malformed lines move to
//     the quarantine and are counted; they are never taken for records. Unknown files are left alone.
//   - Memory is bounded: files are streamed, lines have a bound far above any event (not 64 KiB), and an index costs about 24
//     bytes a record, whatever the record weighs.
//
// The volume is a view: the replicated state says which dead letters are open, the log keeps their payload, and the same
// record may be here twice (a crash before its outcome was committed); look-ups, counts, exports and scans fold by id. It
// starts no goroutine (call Maintain now and then) and knows nothing of emitters, epochs' validity or replay.
package dlq
