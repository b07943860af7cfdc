// Command destination is the webhook receiver of package internal/destination as a process of its own: it listens, prints its
// address, and follows the scripts that PUT /control/NAME gives it. It promises nothing but that, and keeps nothing on disk.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"penstock/internal/destination"
)

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(ctx, *address); err != nil {
		fmt.Fprintln(os.Stderr, "destination:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address string) error {
	var s destination.Server
	got, done, err := s.Listen(ctx, address)
	if err != nil {
		return err
	}
	fmt.Println(got)
	return <-done
}
