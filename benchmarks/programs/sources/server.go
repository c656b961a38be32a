// Answers GET /item/N with a JSON document about N. usage: PROGRAM PORT
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

type row struct {
	ID    int    `json:"id"`
	Word  string `json:"word"`
	Count int    `json:"count"`
}

var (
	words  [20000]string
	counts = map[string]int{}
	mutex  sync.Mutex
)

func answer(writer http.ResponseWriter, request *http.Request) {
	number, _ := strconv.Atoi(request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:])
	rows := make([]row, 0, 20)
	mutex.Lock()
	for i := 0; i < 20; i++ {
		word := words[(number*31+i*977)%len(words)]
		counts[word]++
		rows = append(rows, row{i, word, counts[word]})
	}
	mutex.Unlock()
	body, _ := json.Marshal(rows)
	writer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	writer.Write(body)
}

func main() {
	for i := range words {
		words[i] = "w" + strconv.FormatUint(uint64(uint32(i)*2654435761)>>8, 36)
	}
	if err := http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(answer)); err != nil {
		panic(err)
	}
}
