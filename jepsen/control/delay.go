package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The parts of netfilter's queue protocol (include/uapi/linux/netfilter/nfnetlink_queue.h) that are used here.
const (
	subsysQueue   = 3
	msgPacket     = subsysQueue << 8
	msgVerdict    = subsysQueue<<8 | 1
	msgConfig     = subsysQueue<<8 | 2
	attrCommand   = 1
	attrParams    = 2
	attrMaxLength = 3
	attrPacket    = 1 // in a packet: header with its id
	attrVerdict   = 2
	commandBind   = 1
	copyMeta      = 1
	verdictAccept = 1
	queueNumber   = 7
)

// Delay holds every TCP packet that reaches a host for a while: the kernel hands packet ids to user space (NFQUEUE), which
// answers "accept" later. With jitter, packets overtake each other. netem would be the usual tool; it is often not there.
type Delay struct {
	network *Network
	host    string
	fd      int
	packets atomic.Int64
	once    sync.Once
	done    chan struct{}
}

// StartDelay begins to delay; peers limits it to packets from these source addresses (none: all).
func StartDelay(ctx context.Context, network *Network, host string, base, jitter time.Duration, peers ...string) (*Delay, error) {
	d := &Delay{network: network, host: host, done: make(chan struct{})}
	err := InNamespace(network.Namespace(host), func() (err error) {
		d.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("delay %s: netlink socket: %w", host, err)
	}
	if err := d.bind(); err != nil {
		unix.Close(d.fd)
		return nil, fmt.Errorf("delay %s: %w", host, err)
	}
	go d.run(base, jitter)
	for _, rule := range d.rules("-A", peers) {
		if _, err := network.Firewall(ctx, host, rule...); err != nil {
			return nil, errors.Join(fmt.Errorf("delay %s: %w", host, err), d.Stop(ctx))
		}
	}
	return d, nil
}

func (d *Delay) rules(action string, peers []string) [][]string {
	rule := func(match ...string) []string {
		return append(append([]string{action, "INPUT", "-p", "tcp"}, match...), "-j", "NFQUEUE", "--queue-num", strconv.Itoa(queueNumber), "--queue-bypass")
	}
	if len(peers) == 0 {
		return [][]string{rule()}
	}
	var rules [][]string
	for _, p := range peers {
		rules = append(rules, rule("-s", p))
	}
	return rules
}

func (d *Delay) bind() error {
	if err := unix.Bind(d.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	_ = unix.SetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	_ = unix.SetsockoptTimeval(d.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	// struct nfqnl_msg_config_cmd {u8 command, pad; be16 pf}
	if err := d.send(msgConfig, queueNumber, attr(attrCommand, []byte{commandBind, 0, 0, unix.AF_INET})); err != nil {
		return err
	}
	// struct nfqnl_msg_config_params {be32 copy_range; u8 copy_mode} packed
	if err := d.send(msgConfig, queueNumber, attr(attrParams, []byte{0, 0, 0, 0, copyMeta})); err != nil {
		return err
	}
	return d.send(msgConfig, queueNumber, attr(attrMaxLength, []byte{0, 1, 0, 0}))
}

// attr encodes one netlink attribute, padded to four bytes.
func attr(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func (d *Delay) send(kind uint16, queue uint16, body []byte) error {
	b := binary.NativeEndian.AppendUint32(nil, uint32(20+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...)           // sequence, port
	b = append(b, unix.AF_UNSPEC, 0)            // nfgenmsg: family, version
	b = binary.BigEndian.AppendUint16(b, queue) // nfgenmsg: resource id
	b = append(b, body...)
	return unix.Sendto(d.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (d *Delay) run(base, jitter time.Duration) {
	defer close(d.done)
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(d.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return // closed
		}
		for _, id := range packetIDs(buf[:n]) {
			d.packets.Add(1)
			wait := base
			if jitter > 0 {
				wait += time.Duration(rand.Int64N(int64(jitter)))
			}
			time.AfterFunc(wait, func() { d.accept(id) })
		}
	}
}

func (d *Delay) accept(id uint32) {
	verdict := binary.BigEndian.AppendUint32(nil, verdictAccept)
	verdict = binary.BigEndian.AppendUint32(verdict, id)
	_ = d.send(msgVerdict, queueNumber, attr(attrVerdict, verdict)) // after Stop the kernel has released all packets itself
}

// packetIDs reads the packet ids out of one datagram of netlink messages.
func packetIDs(b []byte) []uint32 {
	var ids []uint32
	for len(b) >= 20 {
		length := int(binary.NativeEndian.Uint32(b))
		if length < 20 || length > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[4:]) == msgPacket {
			for attrs := b[20:length]; len(attrs) >= 4; {
				size := int(binary.NativeEndian.Uint16(attrs))
				if size < 4 || size > len(attrs) {
					break
				}
				if binary.NativeEndian.Uint16(attrs[2:])&0x3fff == attrPacket && size >= 8 {
					ids = append(ids, binary.BigEndian.Uint32(attrs[4:]))
				}
				attrs = attrs[min((size+3)&^3, len(attrs)):]
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return ids
}

// Packets counts what was held so far; it is the confirmation.
func (d *Delay) Packets() int64 { return d.packets.Load() }

// Stop ends the delay; packets still held are let go (--queue-bypass).
func (d *Delay) Stop(ctx context.Context) error {
	var err error
	d.once.Do(func() {
		var out string
		out, err = d.network.Firewall(ctx, d.host, "-S", "INPUT")
		for _, line := range splitLines(out) {
			if containsAll(line, "NFQUEUE", "-A INPUT") {
				err = errors.Join(err, deleteRule(ctx, d.network, d.host, line))
			}
		}
		time.Sleep(100 * time.Millisecond) // what is held passes through the queue's own path first
		_ = unix.Shutdown(d.fd, unix.SHUT_RDWR)
		err = errors.Join(err, unix.Close(d.fd))
		<-d.done
	})
	return err
}
