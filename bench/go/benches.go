package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const unbound = "goroutines cannot be bound to workers"

// What there is to measure, by its name.
var benches = map[string]func(args){
	"yield2":       func(a args) { yields(a, 2) },
	"yield1000":    func(a args) { yields(a, 1000) },
	"spawn":        func(a args) { spawn(a, 1000) },
	"spawn1":       func(a args) { spawn(a, 1) },
	"skynet":       skynet,
	"pingpong":     pingpong,
	"timer_insert": func(a args) { timers(a, func(insert, _ time.Duration) time.Duration { return insert }) },
	"timer_cancel": func(a args) { timers(a, func(_, cancel time.Duration) time.Duration { return cancel }) },
	"timer_expire": expire,
	"mem":          mem,
	"idle":         idle,
	"many":         many,
	"lock":         locks,
	"channel":      channels,
	"throughput":   throughput,
	"contend":      contend,
	"select":       selects,
}

// Runs so many goroutines, and waits for their end.
func together(count int, body func(index int)) {
	var all sync.WaitGroup
	all.Add(count)
	for index := 0; index < count; index++ {
		go func(index int) {
			body(index)
			all.Done()
		}(index)
	}
	all.Wait()
}

func yields(a args, tasks int) {
	// They are to share one worker.
	runtime.GOMAXPROCS(1)
	a.measure("-", tasks, func(n int) time.Duration {
		start := time.Now()
		together(tasks, func(int) {
			for i := 0; i < n/tasks; i++ {
				runtime.Gosched()
			}
		})
		return time.Since(start)
	})
}

func spawn(a args, batch int) {
	a.measure("-", batch, func(n int) time.Duration {
		start := time.Now()
		var all sync.WaitGroup
		for i := 0; i < n/batch; i++ {
			all.Add(batch)
			for j := 0; j < batch; j++ {
				go all.Done()
			}
			all.Wait()
		}
		return time.Since(start)
	})
}

// Sends the sum of size leaves from number first on.
func node(result chan<- int, first, size int) {
	if size == 1 {
		result <- first
		return
	}
	results := make(chan int, 10)
	for index := 0; index < 10; index++ {
		go node(results, first+index*(size/10), size/10)
	}
	sum := 0
	for index := 0; index < 10; index++ {
		sum += <-results
	}
	result <- sum
}

func skynet(a args) {
	leaves := a.count(1_000_000)
	for power := 1; power != leaves; power *= 10 {
		if power > leaves {
			a.fail("-", "n is no power of ten")
			return
		}
	}
	run := func() time.Duration {
		start := time.Now()
		result := make(chan int)
		go node(result, 0, leaves)
		if sum := <-result; sum != leaves*(leaves-1)/2 {
			panic(sum)
		}
		return time.Since(start)
	}
	run()
	a.line("-", milliseconds(run()), "ms")
}

// The time for n round trips of a number over channels with such a room.
func roundTrips(n, room int) time.Duration {
	toPong, toPing := make(chan int, room), make(chan int, room)
	done := make(chan struct{})
	go func() {
		for value := range toPong {
			toPing <- value + 1
		}
		close(done)
	}()
	start := time.Now()
	for value := 0; value < n; value++ {
		toPong <- value
		if back := <-toPing; back != value+1 {
			panic(back)
		}
	}
	time := time.Since(start)
	close(toPong)
	<-done
	return time
}

func pingpong(a args) {
	run := func(n int) time.Duration { return roundTrips(n, 0) }
	runtime.GOMAXPROCS(1)
	a.measure("same", 1, run)
	if a.workers > 1 {
		runtime.GOMAXPROCS(a.workers)
		a.measure("free", 1, run)
		a.fail("across", unbound)
	}
}

// How far ahead a timer is: from 10 s to 1000 s, in no order.
func deadline(index int) time.Duration {
	scattered := uint64(index) * 0x9E3779B97F4A7C15 >> 48
	return 10*time.Second + 990_000_000_000/(1<<16)*time.Duration(scattered)
}

func timers(a args, which func(insert, cancel time.Duration) time.Duration) {
	n := a.count(500_000)
	run := func() (insert, cancel time.Duration) {
		timers := make([]*time.Timer, 0, n)
		start := time.Now()
		for index := 0; index < n; index++ {
			timers = append(timers, time.AfterFunc(deadline(index), func() {}))
		}
		insert = time.Since(start)
		start = time.Now()
		for _, timer := range timers {
			if !timer.Stop() {
				panic("a timer has fired")
			}
		}
		return insert, time.Since(start)
	}
	a.line("first", each(which(run()), n), "ns")
	a.line("-", each(which(run()), n), "ns")
}

// Goroutines that sleep until a time of their own, evenly over one second, which begins when all have gone to sleep.
func expire(a args) {
	n := a.count(100_000)
	// First in a new process, which has to touch memory for the first time, then where it is there already.
	if _, ok := expireRound(a, n, "first"); !ok {
		return
	}
	if wall, ok := expireRound(a, n, "-"); ok {
		a.line("wall", milliseconds(wall), "ms")
	}
}

// A second of sleepers that wake. Returns how long it was, and whether they had fallen asleep in time.
func expireRound(a args, n int, variant string) (time.Duration, bool) {
	first := time.Now().Add(200*time.Millisecond + time.Duration(n)*15*time.Microsecond)
	var arrived int64
	var all sync.WaitGroup
	all.Add(n)
	for index := 0; index < n; index++ {
		wake := first.Add(time.Duration(float64(time.Second) * float64(index) / float64(n)))
		go func() {
			atomic.AddInt64(&arrived, 1)
			time.Sleep(time.Until(wake))
			all.Done()
		}()
	}
	time.Sleep(time.Until(first) - 50*time.Millisecond)
	cpu := cpuTime()
	if count := atomic.LoadInt64(&arrived); count < int64(n) || time.Now().After(first) {
		a.fail(variant, fmt.Sprintf("%d of %d tasks fell asleep, and that took too long", count, n))
		return 0, false
	}
	all.Wait()
	a.line(variant, each(cpuTime()-cpu, n), "ns")
	return time.Since(first), true
}

// The processor time of the process, in all its threads.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The bytes of memory that the process and its page tables have now.
func resident() float64 {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		panic(err)
	}
	defer file.Close()
	kilobytes := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "VmRSS:" || words[0] == "VmPTE:" {
			number, err := strconv.Atoi(words[1])
			if err != nil {
				panic(err)
			}
			kilobytes += number
		}
	}
	return float64(kilobytes) * 1024
}

// What goroutines cost that wait for a channel and are woken.
type parked struct {
	bytes, load float64
	spawn, wake time.Duration
}

func park(n int, hold time.Duration) (result parked) {
	release := make(chan struct{})
	var arrived int64
	var all sync.WaitGroup
	all.Add(n)
	runtime.GC()
	empty := resident()
	start := time.Now()
	for i := 0; i < n; i++ {
		go func() {
			atomic.AddInt64(&arrived, 1)
			<-release
			all.Done()
		}()
	}
	for atomic.LoadInt64(&arrived) < int64(n) {
		runtime.Gosched()
	}
	result.spawn = time.Since(start)
	time.Sleep(200 * time.Millisecond)
	result.bytes = (resident() - empty) / float64(n)
	cpu := cpuTime()
	start = time.Now()
	time.Sleep(hold)
	result.load = (cpuTime() - cpu).Seconds() / time.Since(start).Seconds()
	start = time.Now()
	close(release)
	all.Wait()
	result.wake = time.Since(start)
	return result
}

func mem(a args) {
	a.line("-", park(a.count(100_000), 0).bytes, "B")
}

func idle(a args) {
	a.line("-", park(a.count(10_000), time.Second).load*100, "%")
}

func many(a args) {
	n := a.count(10_000)
	result := park(n, 0)
	a.line("spawn", each(result.spawn, n), "ns")
	a.line("wake", each(result.wake, n), "ns")
	a.line("memory", result.bytes, "B")
}

func locks(a args) {
	var total uint64
	repeat := func(once func()) func(int) time.Duration {
		return func(n int) time.Duration {
			start := time.Now()
			for i := 0; i < n; i++ {
				once()
			}
			return time.Since(start)
		}
	}
	var mutex sync.Mutex
	var shared sync.RWMutex
	a.measure("go mutex", 1, repeat(func() {
		mutex.Lock()
		total++
		mutex.Unlock()
	}))
	a.measure("go read", 1, repeat(func() {
		shared.RLock()
		_ = total
		shared.RUnlock()
	}))
	a.measure("go write", 1, repeat(func() {
		shared.Lock()
		total++
		shared.Unlock()
	}))
}

// Two goroutines send a number to and fro, on one worker if there is only one; on two for good is more than one can ask for.
func channels(a args) {
	for _, room := range []int{1, 0} {
		name := fmt.Sprintf("go bounded(%d)", room)
		if a.workers > 1 {
			a.fail(name, unbound)
			continue
		}
		room := room
		a.measure(name, 1, func(n int) time.Duration { return roundTrips(n, room) })
	}
}

// Senders, receivers, and a channel between them that has room for a thousand.
func throughput(a args) {
	for _, ends := range []int{1, 4} {
		ends := ends
		a.measure(fmt.Sprintf("go %d:%d", ends, ends), ends, func(n int) time.Duration {
			share := n / ends
			channel := make(chan int, 1000)
			var sum int64
			start := time.Now()
			received := make(chan struct{})
			go func() {
				together(ends, func(int) {
					own := 0
					for value := range channel {
						own += value
					}
					atomic.AddInt64(&sum, int64(own))
				})
				close(received)
			}()
			together(ends, func(int) {
				for value := 0; value < share; value++ {
					channel <- value
				}
			})
			close(channel)
			<-received
			if sum != int64(ends*(share*(share-1)/2)) {
				panic(sum)
			}
			return time.Since(start)
		})
	}
}

var sink uint64 = 1

// Something to do for some tens of nanoseconds, as the other programs do it.
//
//go:noinline
func work() uint64 {
	value := sink
	for i := 0; i < 20; i++ {
		value = (value ^ (value >> 7)) * 0x9E3779B97F4A7C15
	}
	return value
}

// Many goroutines want one lock, and hold it for a few instructions or across a yield.
func contend(a args) {
	for _, crowd := range []int{4, 100} {
		for _, hold := range []string{"short", "yielding"} {
			crowd, hold := crowd, hold
			a.measure(fmt.Sprintf("go mutex, %d %s", crowd, hold), crowd, func(n int) time.Duration {
				var mutex sync.Mutex
				total := 0
				start := time.Now()
				together(crowd, func(int) {
					for i := 0; i < n/crowd; i++ {
						mutex.Lock()
						total++
						if hold == "short" {
							work()
						} else {
							runtime.Gosched()
						}
						mutex.Unlock()
						work()
					}
				})
				if total != n {
					panic(total)
				}
				return time.Since(start)
			})
		}
	}
}

// Receives from whichever of two channels has something: without a wait, and from two senders that wait for room.
func selects(a args) {
	either := func(first, second <-chan int) int {
		select {
		case value := <-first:
			return value
		case value := <-second:
			return value
		}
	}
	a.measure("go ready", 2, func(n int) time.Duration {
		channels := [2]chan int{make(chan int, 1), make(chan int, 1)}
		start := time.Now()
		for value := 0; value < n; value++ {
			channels[value%2] <- value
			if got := either(channels[0], channels[1]); got != value {
				panic(got)
			}
		}
		return time.Since(start)
	})
	a.measure("go waiting", 2, func(n int) time.Duration {
		channels := [2]chan int{make(chan int, 1), make(chan int, 1)}
		start := time.Now()
		for _, channel := range channels {
			go func(channel chan<- int) {
				for value := 0; value < n/2; value++ {
					channel <- value
				}
			}(channel)
		}
		sum := 0
		for i := 0; i < n; i++ {
			sum += either(channels[0], channels[1])
		}
		if share := n / 2; sum != share*(share-1) {
			panic(sum)
		}
		return time.Since(start)
	})
}
