package main

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	if a, ok := parse([]string{"yield2", "3"}); !ok || a.bench != "yield2" || a.workers != 3 || a.count(7) != 7 {
		t.Error(a, ok)
	}
	if a, ok := parse([]string{"mem", "1", "5"}); !ok || a.count(7) != 5 {
		t.Error(a, ok)
	}
	if a, ok := parse([]string{"echo", "1", "0"}); !ok || !a.isServer() || a.n != 0 {
		t.Error(a, ok)
	}
	for _, wrong := range []string{"", "mem", "mem 0", "mem 1 0", "mem 1 x", "mem 1 2 3", "echo 1", "http 1 65536", "http 1 -1"} {
		if a, ok := parse(strings.Fields(wrong)); ok {
			t.Error(wrong, a)
		}
	}
}

func TestFitting(t *testing.T) {
	run := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	if n := fitting(1, roundLength, run); n < 9_000 || n > 11_000 {
		t.Error(n)
	}
	if n := fitting(1_000_000, roundLength, run); n != 1_000_000 {
		t.Error(n)
	}
}
