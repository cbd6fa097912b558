package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
)

// The bytes that the echo servers read at once, at most: of messages, and of streams.
const small, large = 1 << 10, 64 << 10

// Serves on the loopback until the process is killed. Connections have TCP_NODELAY unless told otherwise.
func serve(service string, port int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	fmt.Println("READY", listener.Addr().(*net.TCPAddr).Port)
	if service == "http" {
		return http.Serve(listener, http.HandlerFunc(hello))
	}
	bufferSize := small
	if service == "stream" {
		bufferSize = large
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go echo(connection, bufferSize)
	}
}

func echo(connection net.Conn, bufferSize int) {
	defer connection.Close()
	buffer := make([]byte, bufferSize)
	for {
		count, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:count]); err != nil {
			return
		}
	}
}

func hello(response http.ResponseWriter, _ *http.Request) {
	io.WriteString(response, "Hello, World!")
}
