// Package printer writes results to standard output, and progress to standard error.
package printer

import (
	"context"
	"fmt"
	"io"
)

// TruncateOutput is set by a flag, which changes nothing here.
var TruncateOutput bool

type Options struct{}

func NewOpt() *Options { return &Options{} }

type Printer interface {
	Printf(format string, args ...any)
	OptPrintf(options *Options, format string, args ...any)
	OutStream() io.Writer
	ErrStream() io.Writer
}

type printer struct{ out, err io.Writer }

func New(out, err io.Writer) Printer { return &printer{out, err} }

func (p *printer) OutStream() io.Writer { return p.out }

func (p *printer) ErrStream() io.Writer { return p.err }

func (p *printer) Printf(format string, args ...any) { fmt.Fprintf(p.err, format, args...) }

func (p *printer) OptPrintf(_ *Options, format string, args ...any) { p.Printf(format, args...) }

type key struct{}

func WithContext(ctx context.Context, p Printer) context.Context {
	return context.WithValue(ctx, key{}, p)
}

func FromContextOrDie(ctx context.Context) Printer {
	return ctx.Value(key{}).(Printer)
}
