package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock/jepsen/client"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/workload"
)

func (r *run) nemesisEnv() *nemesis.Env {
	return &nemesis.Env{
		Cluster: r.cluster, Clock: r.clock, Log: r.fault, Leader: r.obs.leader, Healthy: r.healthy, TmpDir: r.path("nodes"),
		Emitters: webhooks(), Destination: r.setDestination, Failures: r.destinationFailures,
		Join: func(ctx context.Context, id string) error {
			for _, suffrage := range []string{"nonvoter", "voter"} { // a vote comes only once it has caught up
				err := poll(ctx, func(ctx context.Context) error {
					return r.member(ctx, http.MethodPost, "/v1/cluster/members", fmt.Sprintf(`{"id":%q,"suffrage":%q}`, id, suffrage))
				})
				if err != nil {
					return fmt.Errorf("as %s: %w", suffrage, err)
				}
			}
			return nil
		},
		Snapshot: func(ctx context.Context, host string) error {
			for _, c := range r.admin {
				if c.Node == host {
					if a := c.Do(ctx, http.MethodPost, "/v1/cluster/snapshot", nil, "application/json", nil); a.Outcome != client.Done {
						return fmt.Errorf("snapshot of %s: %s", host, a.Error())
					}
				}
			}
			return nil
		},
		Owner: r.owner,
		First: func(ctx context.Context, host string) (uint64, error) {
			for _, c := range r.clients {
				if c.Node == host {
					v, err := c.Cluster(ctx)
					return v.First, err
				}
			}
			return 0, fmt.Errorf("no node %s", host)
		},
		Transfer: func(ctx context.Context, id string) error {
			return poll(ctx, func(ctx context.Context) error {
				return r.member(ctx, http.MethodPost, "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, id))
			})
		},
		Remove: func(ctx context.Context, id string) error {
			return poll(ctx, func(ctx context.Context) error {
				return r.member(ctx, http.MethodDelete, "/v1/cluster/members/"+id, "")
			})
		},
		Evict: func(ctx context.Context, id string) error {
			return poll(ctx, func(ctx context.Context) error {
				return r.member(ctx, http.MethodDelete, "/v1/cluster/members/"+id+"?force=1", "")
			})
		},
		Demote: func(ctx context.Context, id string) error {
			return poll(ctx, func(ctx context.Context) error {
				return r.member(ctx, http.MethodPost, "/v1/cluster/members/"+id+"/demote", `{"force":true}`)
			})
		},
	}
}

// owner is the host that owns an emitter, as any node but one tells it; "" when none does.
func (r *run) owner(ctx context.Context, emitter, not string) (string, error) {
	err := fmt.Errorf("no emitter %s", emitter)
	for _, e := range workload.Emitters() {
		if e.Name != emitter {
			continue
		}
		for _, c := range r.clients {
			if c.Node == not {
				continue
			}
			var l client.Ledger
			if l, err = c.Ledger(ctx, e.Channel); err != nil {
				continue
			}
			for _, row := range l.Emitters {
				if row.Emitter == emitter {
					host, _, _ := strings.Cut(row.Owner, "r") // n2r1 runs on n2
					return host, nil
				}
			}
		}
	}
	return "", err
}

// stands tells whether a refusal says that the change is there: of an earlier try, whose answer did not arrive.
func stands(method string, a client.Answer) bool {
	if a.Status != http.StatusConflict {
		return false
	}
	already := []string{"is a voter already", "is a member already", "leads already", "has no vote"}
	if method == http.MethodDelete {
		already = []string{"is not a member"}
	}
	return slices.ContainsFunc(already, func(s string) bool { return bytes.Contains(a.Body, []byte(s)) })
}

func (r *run) member(ctx context.Context, method, path, body string) error {
	var errs []error
	for _, c := range r.admin {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		a := c.Do(bounded, method, path, nil, "application/json", []byte(body))
		cancel()
		if a.Outcome == client.Done || stands(method, a) {
			return nil
		}
		errs = append(errs, errors.New(c.Node+": "+a.Error()))
	}
	return errors.Join(errs...)
}

func (r *run) setDestination(ctx context.Context, emitter, mode string) error {
	_, err := r.askDestination(ctx, r.bases[emitter]+"/control?"+url.Values{"emitter": {emitter}, "mode": {mode}}.Encode())
	return err
}

func (r *run) destinationFailures(ctx context.Context) (int, error) {
	sum, asked := 0, map[string]bool{}
	for _, base := range r.bases {
		if asked[base] {
			continue
		}
		asked[base] = true
		text, err := r.askDestination(ctx, base+"/failures")
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (r *run) askDestination(ctx context.Context, u string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("destination: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return string(b), err
}
