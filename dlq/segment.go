package dlq

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// segment is what is known of one file.
type segment struct {
	number                     uint64
	size                       int64
	records                    int // lines; repeats of an id count
	replaced                   int // of these, how many a later record replaced
	oldestDead, oldestPoisoned time.Time
}

func (s *segment) note(state State, at time.Time) {
	s.records++
	if state == Poison {
		s.oldestPoisoned = oldest(s.oldestPoisoned, at)
	} else {
		s.oldestDead = oldest(s.oldestDead, at)
	}
}

const (
	sealedPrefix = "sealed-"
	sealedSuffix = ".jsonl"
	numberDigits = 16
)

func sealedName(number uint64) string {
	return fmt.Sprintf("%s%0*d%s", sealedPrefix, numberDigits, number, sealedSuffix)
}

// sealedNumber reads a name that sealedName wrote; ok is false for any other.
func sealedNumber(name string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, sealedPrefix)
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, sealedSuffix)
	if !ok || len(digits) != numberDigits {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && number > 0
}

// isLeftover tells whether a name is that of a rewrite of ours that did not finish.
func isLeftover(name string) bool {
	base, ok := strings.CutSuffix(name, tmpSuffix)
	if !ok {
		return false
	}
	_, sealed := sealedNumber(base)
	return sealed || base == activeName || base == identityName
}
