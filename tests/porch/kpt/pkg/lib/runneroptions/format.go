// Package runneroptions formats the results of functions.
package runneroptions

import (
	"fmt"
	"strings"
)

type SingleLineFormatter struct {
	Title     string
	Lines     []string
	UseQuote  bool
	Separator string
}

func (f *SingleLineFormatter) String() string {
	verb := "%s"
	if f.UseQuote {
		verb = "%q"
	}
	lines := make([]string, len(f.Lines))
	for i, line := range f.Lines {
		lines[i] = fmt.Sprintf(verb, line)
	}
	return fmt.Sprintf("%s: %s\n", f.Title, strings.Join(lines, f.Separator))
}
