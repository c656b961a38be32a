// Two goroutines count words in maps, sort and hash them.
//
// usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"sort"
	"strconv"
)

func once(seed uint64) uint64 {
	counts := map[string]int{}
	state := seed*2 + 1
	for i := 0; i < 30000; i++ {
		state = state*6364136223846793005 + 1442695040888963407
		counts["w"+strconv.FormatUint(state>>52, 36)]++
	}
	words := make([]string, 0, len(counts))
	for word := range counts {
		words = append(words, word)
	}
	sort.Strings(words)
	hash := sha256.New()
	for _, word := range words {
		fmt.Fprintf(hash, "%s=%d;", word, counts[word])
	}
	return binary.LittleEndian.Uint64(hash.Sum(nil))
}

func work(number, rounds uint64, result chan<- uint64) {
	var sum uint64
	for i := uint64(0); rounds == 0 || i < rounds; i++ {
		sum = sum*31 + once(number*1000+i%1000)
	}
	result <- sum
}

func main() {
	var rounds uint64
	if len(os.Args) > 1 {
		rounds, _ = strconv.ParseUint(os.Args[1], 10, 64)
	}
	first, second := make(chan uint64), make(chan uint64)
	go work(1, rounds, first)
	go work(2, rounds, second)
	fmt.Printf("%016x\n", <-first*31+<-second)
}
