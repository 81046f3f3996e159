// Package fake has a printer of nothing.
package fake

import (
	"io"

	"github.com/kptdev/kpt/pkg/printer"
)

type Printer struct{}

func (*Printer) Printf(string, ...any) {}

func (*Printer) OptPrintf(*printer.Options, string, ...any) {}

func (*Printer) OutStream() io.Writer { return io.Discard }

func (*Printer) ErrStream() io.Writer { return io.Discard }
