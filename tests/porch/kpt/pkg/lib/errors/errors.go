// Package errors wraps an error with the operation in which it came up.
package errors

import (
	goerrors "errors"
	"fmt"
	"strings"
)

type Op string

type Error struct {
	Op  Op
	Err error
}

func (e *Error) Error() string {
	texts := make([]string, 0, 2)
	if e.Op != "" {
		texts = append(texts, string(e.Op))
	}
	if e.Err != nil {
		texts = append(texts, e.Err.Error())
	}
	return strings.Join(texts, ": ")
}

func (e *Error) Unwrap() error { return e.Err }

// E makes an error of an operation and an error or a text, of which the last counts.
func E(args ...any) error {
	made := &Error{}
	for _, arg := range args {
		switch value := arg.(type) {
		case Op:
			made.Op = value
		case error:
			made.Err = value
		case string:
			made.Err = goerrors.New(value)
		default:
			panic(fmt.Sprintf("E does not take a %T", arg))
		}
	}
	return made
}

func As(err error, target any) bool { return goerrors.As(err, target) }

// UnwrapErrors returns the first cause that is no *Error, false if there is none.
func UnwrapErrors(err *Error) (error, bool) {
	for err != nil && err.Err != nil {
		next, wrapped := err.Err.(*Error)
		if !wrapped {
			return err.Err, true
		}
		err = next
	}
	return nil, false
}
