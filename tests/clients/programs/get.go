// Go's net/http: a GET through the proxy of the environment; prints status and body, or what went wrong.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	response, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	body, err := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode, string(body), err)
	if response.StatusCode != 200 {
		os.Exit(1)
	}
}
