// Package compose proves what an operator gets from Dockerfile, Makefile and docker-compose.yml: that the files are sound, and,
// where a container engine runs or can be started, that the three containers they make keep what they acknowledged while one
// is killed and one is cut off.
//
// It promises to touch nothing but what it made: image, project, networks and volumes carry the name of the run and are
// removed at its end. It talks to published ports on loopback only. It holds no product code.
package compose
