package oracle

// Read decodes the log in a node's log directory. What could not be read is said in Problem; what came before it is kept.
func Read(node, dir string) *Log {
	l := &Log{Node: node}
	err := walk(dir, func(r record) error {
		e, err := decode(r)
		if err != nil {
			return err
		}
		l.Entries = append(l.Entries, e)
		return nil
	})
	if err != nil {
		l.Problem = err.Error()
	}
	return l
}
