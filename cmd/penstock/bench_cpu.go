package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/internal/client"
)

// serverCPU is the CPU time of all members so far, by their own metrics. An error when one of them does not tell.
func serverCPU(ctx context.Context, c client.Cluster) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sum := 0.0
	for _, m := range c.Members {
		v, err := processCPU(ctx, m.HTTP)
		if err != nil {
			return 0, fmt.Errorf("metrics of %s: %w", m.ID, err)
		}
		sum += v
	}
	return sum, nil
}

func processCPU(ctx context.Context, addr string) (float64, error) {
	const metric = "process_cpu_seconds_total "
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), metric); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("no %s", strings.TrimSpace(metric))
}
