package main

import (
	"context"
	"fmt"

	"penstock/jepsen/control"
)

func main() {
	for _, c := range control.Doctor(context.Background(), "d0") {
		fmt.Println(c.OK, c.Name, c.Detail)
	}
}
