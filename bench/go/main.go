// The micro-benchmarks and the servers in Go, called as the programs in ../src/bin are: `go <bench> <workers> [n]`, and
// `go <echo|stream|http> <workers> <port>`. A process makes one short measurement after one to warm up, and prints lines of
// `peer bench variant value unit`, separated by tabs. `cargo xtask bench` builds and runs it where there is Go.
//
// This file has the command line and the harness, benches.go what is measured, and servers.go the servers.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"time"
)

const (
	// How long a measurement takes if the command line does not say how much to do.
	length = 150 * time.Millisecond
	// It consists of rounds of about this length, of which the median counts.
	roundLength = 10 * time.Millisecond
	// How long the last run of the warm-up takes at least.
	warm = 50 * time.Millisecond
)

// The command line.
type args struct {
	bench   string
	workers int
	// How much to do, or the port of a server; less than zero if it is not there.
	n int
}

func parse(words []string) (args, bool) {
	if len(words) != 2 && len(words) != 3 {
		return args{}, false
	}
	a := args{bench: words[0], n: -1}
	var err error
	if a.workers, err = strconv.Atoi(words[1]); err != nil || a.workers < 1 {
		return args{}, false
	}
	if len(words) == 3 {
		if a.n, err = strconv.Atoi(words[2]); err != nil || a.n < 0 {
			return args{}, false
		}
	}
	if a.isServer() {
		return a, a.n >= 0 && a.n <= 65535
	}
	return a, a.n != 0
}

func (a args) isServer() bool {
	return a.bench == "echo" || a.bench == "stream" || a.bench == "http"
}

// How much to do.
func (a args) count(otherwise int) int {
	if a.n > 0 {
		return a.n
	}
	return otherwise
}

func (a args) line(variant string, value float64, unit string) {
	fmt.Printf("go\t%s\t%s\t%.2f\t%s\n", a.bench, variant, value, unit)
}

func (a args) fail(variant, reason string) {
	fmt.Printf("go\t%s\t%s\tFAIL: %s\t-\n", a.bench, variant, reason)
}

// Nanoseconds for each of n things.
func each(time time.Duration, n int) float64 {
	return float64(time.Nanoseconds()) / float64(n)
}

func milliseconds(time time.Duration) float64 {
	return time.Seconds() * 1e3
}

// How many things, a multiple of step, fit into such a time. Finding out warms up.
func fitting(step int, length time.Duration, run func(n int) time.Duration) int {
	n := step
	for {
		time := run(n)
		if time >= warm {
			fitting := int(float64(n) * length.Seconds() / time.Seconds())
			return (fitting/step + 1) * step
		}
		n *= 4
	}
}

// The median of rounds of run, which does so many things, and prints it.
func (a args) measure(variant string, step int, run func(n int) time.Duration) {
	if a.n > 0 {
		n := (a.n + step - 1) / step * step
		run(n)
		a.line(variant, each(run(n), n), "ns")
		return
	}
	n := fitting(step, roundLength, run)
	var times []float64
	for start := time.Now(); len(times) == 0 || time.Since(start) < length; {
		times = append(times, each(run(n), n))
	}
	a.line(variant, middle(times), "ns")
}

func middle(values []float64) float64 {
	sort.Float64s(values)
	return values[len(values)/2]
}

func main() {
	a, ok := parse(os.Args[1:])
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: go <bench> <workers> [n]\n       go <echo|stream|http> <workers> <port>")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(a.workers)
	if a.isServer() {
		if err := serve(a.bench, a.n); err != nil {
			a.fail("-", err.Error())
			os.Exit(1)
		}
		return
	}
	if bench, ok := benches[a.bench]; ok {
		bench(a)
	} else {
		a.fail("-", "there is nothing of the kind")
	}
}
