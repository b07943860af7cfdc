package spec

// Duration is a span of time that is written with its unit: "1s", "10m", "1h30m", "0s". Nanoseconds inside.
type Duration int64

// Size is a number of bytes that is written with its unit: "512B", "8MiB", "10GiB"; also kB, MB, GB as powers of 1000. 0 may stand bare.
type Size int64
