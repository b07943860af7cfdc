package load

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// maxAnswer bounds the body of an answer.
const maxAnswer = 1 << 20

// conn is one HTTP/1.1 connection with at most one request under way. It is opened again after an error.
type conn struct {
	address string
	timeout time.Duration
	conn    net.Conn
	in      *bufio.Reader
	body    []byte
}

type answer struct {
	status int
	body   []byte // until the next round trip
}

func (c *conn) open(ctx context.Context) error {
	d := net.Dialer{Timeout: min(c.timeout, 3*time.Second)}
	conn, err := d.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return err
	}
	c.conn, c.in = conn, bufio.NewReader(conn)
	return nil
}

func (c *conn) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// roundTrip sends one request. wrote tells, when there is an error, whether the node may have got all of it.
func (c *conn) roundTrip(raw []byte) (a answer, wrote bool, err error) {
	_ = c.conn.SetDeadline(time.Now().Add(c.timeout))
	if _, err := c.conn.Write(raw); err != nil {
		// Go writes all or fails; a node acts on no request whose body did not come to its end.
		c.close()
		return answer{}, false, err
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.close()
		return answer{}, true, err
	}
	if n := resp.ContentLength; n >= 0 && n <= maxAnswer {
		if int64(cap(c.body)) < n {
			c.body = make([]byte, n)
		}
		c.body = c.body[:n]
		_, err = io.ReadFull(resp.Body, c.body)
	} else {
		c.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		if err == nil && len(c.body) > maxAnswer {
			err = errors.New("an answer without an end")
		}
	}
	if err != nil || resp.Close {
		c.close()
	}
	return answer{resp.StatusCode, c.body}, true, err
}
