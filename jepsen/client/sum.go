package client

import (
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Sum is a short hash of an event's data, to tell that what comes out is what went in.
func Sum(data []byte) string { return strconv.FormatUint(xxhash.Sum64(data), 36) }
