package sink

import (
	"fmt"
	"strconv"
)

// Class says what a failed attempt means for the delivery.
type Class uint8

// The classes. The numbers go through the log and never change.
const (
	// None: no failure.
	None Class = 0
	// Transient: back off and try again within the budget.
	Transient Class = 1
	// Permanent: it will not get better; dead letter now.
	Permanent Class = 2
	// Auth: the destination refuses the credentials. As transient, with its own name, since a rotated secret must not lose data.
	Auth Class = 3
	// Poison: can never succeed anywhere; poison queue now.
	Poison Class = 4
)

var classNames = [...]string{None: "none", Transient: "transient", Permanent: "permanent", Auth: "auth", Poison: "poison"}

// String gives the name used in specs, metrics and answers.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "class " + strconv.Itoa(int(c))
}

// ParseClass reads what String gives, but for "none".
func ParseClass(s string) (Class, error) {
	for c, name := range classNames {
		if s == name && Class(c) != None {
			return Class(c), nil
		}
	}
	return None, fmt.Errorf("class %q: want transient, permanent, auth or poison", s)
}

// Classifier turns the HTTP status of a failed attempt into a class.
type Classifier struct {
	exact    map[int]Class // by status
	hundreds [10]Class     // by status / 100; None where nothing is overridden
}

// NewClassifier reads the overrides of an emitter's spec: a status ("404") or a hundred ("5xx") to a class's name.
// A status wins over its hundred.
func NewClassifier(overrides map[string]string) (*Classifier, error) {
	c := &Classifier{exact: map[int]Class{}}
	for key, name := range overrides {
		class, err := ParseClass(name)
		if err != nil {
			return nil, fmt.Errorf("classes: %q: %w", key, err)
		}
		if len(key) == 3 && key[0] >= '3' && key[0] <= '5' && key[1:] == "xx" {
			c.hundreds[key[0]-'0'] = class
			continue
		}
		status, err := strconv.Atoi(key)
		if err != nil || status < 300 || status > 599 {
			return nil, fmt.Errorf("classes: %q: want a status from 300 to 599, or 3xx, 4xx, 5xx", key)
		}
		c.exact[status] = class
	}
	return c, nil
}

// Class gives the class of a status that is no success. A redirect is permanent: it is never followed, and the spec's URL
// has to be mended by a person. Anything out of the ordinary is transient, since retrying within a budget loses nothing.
func (c *Classifier) Class(status int) Class {
	if class, ok := c.exact[status]; ok {
		return class
	}
	if h := status / 100; h >= 0 && h < len(c.hundreds) && c.hundreds[h] != None {
		return c.hundreds[h]
	}
	switch {
	case status == 401 || status == 403:
		return Auth
	case status == 408 || status == 425 || status == 429:
		return Transient
	case status >= 300 && status < 500:
		return Permanent
	default:
		return Transient
	}
}
