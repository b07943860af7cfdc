// Package runner leads one run from its options to its verdict: lay the cluster, start clients and nemesis, heal, watch what
// must come back within its bounds, read everything, judge, write the report.
//
// It promises that what it made is removed whatever happens, that the evidence of each run lies in one directory outside the
// faulted mounts, and that Recheck judges that directory again.
package runner
