package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Load reads the configuration of one node: defaults, then the file (none when path is empty), then the variables
// PENSTOCK_SECTION_KEY of environ (as os.Environ gives them), then overrides (key to value, from flags), and validates it.
// It creates nothing.
func Load(path string, environ []string, overrides map[string]string) (Config, error) {
	c, err := read(path, environ, overrides)
	if err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	if err := c.CheckNames(context.Background(), net.DefaultResolver); err != nil {
		return Config{}, err
	}
	return c, nil
}

// read does all of Load but the checks.
func read(path string, environ []string, overrides map[string]string) (Config, error) {
	c := Default()
	c.origins = map[string]origin{}
	s := schemaOf(&c)
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("read configuration: %w", err)
		}
		if err := s.file(path, b); err != nil {
			return Config{}, err
		}
	}
	if err := s.environ(environ); err != nil {
		return Config{}, err
	}
	return c, s.overrides(overrides)
}

// variable is the name of the environment variable of a key: node.data_dir is PENSTOCK_NODE_DATA_DIR.
func variable(key string) string {
	return "PENSTOCK_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// platform: what Kubernetes sets for a service whose name starts with penstock; never a setting.
var platform = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?$|_PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?$`)

// others are the PENSTOCK_ variables that are not the configuration's: of the command line, of the fault harness and of tests. A
// secret that the configuration refers to (${env:...}) is best named without the prefix, or begins with PENSTOCK_SECRET_.
var others = regexp.MustCompile(`^PENSTOCK_(ADDR|CONFIG|OUTPUT|TOKEN|TOKENS|TOKEN_FILE|MUTANT|FULL|BINARY|CORPUS|(SECRET|CHAOS|TEST|BENCH|WRITE)_\w+)$`)

// environ sets what PENSTOCK_* variables say. Within a known section an unknown key is an error, as in the file; any other
// PENSTOCK_ variable that nobody knows is a warning.
func (s *schema) environ(environ []string) error {
	byVariable := map[string]string{}
	sections := map[string]string{}
	for key := range s.fields {
		byVariable[variable(key)] = key
		if section, _, dotted := strings.Cut(key, "."); dotted {
			sections[variable(section)+"_"] = section
		}
	}
	var errs []error
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "PENSTOCK_") || value == "" {
			continue
		}
		if key, ok := byVariable[name]; ok {
			errs = append(errs, s.set(key, origin{where: "$" + name}, value))
			continue
		}
		if platform.MatchString(name) {
			continue
		}
		inSection := false
		for prefix, section := range sections {
			if strings.HasPrefix(name, prefix) {
				inSection = true
				errs = append(errs, &Fault{Where: "$" + name, Key: section, Value: strings.ToLower(name[len(prefix):]), Allowed: "unknown key, want one of: " + s.keysOf(section)})
			}
		}
		if !inSection && !others.MatchString(name) {
			s.config.unknown = append(s.config.unknown, name)
		}
	}
	return errors.Join(errs...)
}

// overrides sets what flags said, in the order of the keys.
func (s *schema) overrides(overrides map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		if _, ok := s.fields[key]; !ok {
			section, _, _ := strings.Cut(key, ".")
			errs = append(errs, &Fault{Where: "flag", Key: key, Value: overrides[key], Allowed: "unknown key, want one of: " + s.keysOf(section)})
			continue
		}
		errs = append(errs, s.set(key, origin{where: "flag"}, overrides[key]))
	}
	return errors.Join(errs...)
}
