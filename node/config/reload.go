package config

import (
	"fmt"
	"reflect"
)

// Change is one setting that differs between two configurations.
type Change struct {
	Key      string
	From, To string
}

// String is the change in a line of the log. No setting is a secret: those are references.
func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Key, c.From, c.To) }

// Changes tells what is different in next: what a running node takes over, and what needs a restart.
func (c *Config) Changes(next *Config) (now, restart []Change) {
	a, b := schemaOf(c), schemaOf(next)
	for _, key := range a.order {
		from, to := a.fields[key].Interface(), b.fields[key].Interface()
		if reflect.DeepEqual(from, to) {
			continue
		}
		change := Change{Key: key, From: fmt.Sprint(from), To: fmt.Sprint(to)}
		if a.reloads[key] {
			now = append(now, change)
		} else {
			restart = append(restart, change)
		}
	}
	return now, restart
}

// Reloaded is c with what a running node takes over from next.
func (c Config) Reloaded(next *Config) Config {
	s, n := schemaOf(&c), schemaOf(next)
	for key := range s.reloads {
		s.fields[key].Set(n.fields[key])
	}
	return c
}
