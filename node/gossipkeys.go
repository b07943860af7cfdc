package node

import (
	"fmt"

	"penstock/cluster/gossip"
	"penstock/emit/webhook"
	"penstock/node/config"
)

// gossipKeys reads the keys that cluster.gossip_keys refers to, as they are now. An error names the reference, never the key.
func gossipKeys(c config.Config) ([][]byte, error) {
	var keys [][]byte
	for _, ref := range c.Cluster.GossipKeys {
		text, err := webhook.ResolveReference(ref)
		if err != nil {
			return nil, fmt.Errorf("cluster.gossip_keys: %s: %w", ref, err)
		}
		key, err := gossip.ParseKey(text)
		if err != nil {
			return nil, fmt.Errorf("cluster.gossip_keys: %s: %w", ref, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
