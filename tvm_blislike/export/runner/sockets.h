// Blocking TCP sockets, and the messages of TVM's RPC tracker: a length and a JSON text.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

inline bool receive(int socket, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    ssize_t count = read(socket, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

inline bool send_all(int socket, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    ssize_t count = write(socket, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

inline bool send_int(int socket, int32_t value) { return send_all(socket, &value, sizeof value); }

inline bool send_text(int socket, const char* text) {
  return send_int(socket, static_cast<int32_t>(strlen(text))) &&
         send_all(socket, text, strlen(text));
}

// A text of at most `room` - 1 characters; false when the connection broke or it is longer.
inline bool receive_text(int socket, char* text, int32_t room) {
  int32_t size = 0;
  if (!receive(socket, &size, sizeof size) || size < 0 || size >= room) return false;
  text[size] = '\0';
  return receive(socket, text, static_cast<size_t>(size));
}

// Splits "host:port"; ends the program when it is none.
inline void split_address(const char* address, char* host, size_t room, char* port) {
  const char* colon = strrchr(address, ':');
  if (colon == nullptr || colon == address || strlen(colon + 1) - 1 > 4 ||
      static_cast<size_t>(colon - address) >= room) {
    die(kUsage, "%s is not of the form HOST:PORT", address);
  }
  memcpy(host, address, static_cast<size_t>(colon - address));
  host[colon - address] = '\0';
  strcpy(port, colon + 1);
}

inline addrinfo* resolve(const char* address) {
  char host[256], port[8];
  split_address(address, host, sizeof host, port);
  addrinfo wanted = {};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int failure = getaddrinfo(host, port, &wanted, &found);
  if (failure != 0) die(kUsage, "cannot find %s: %s", address, gai_strerror(failure));
  return found;
}

// A connected socket, or -1.
inline int connect_to(const addrinfo* address) {
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connection < 0) return -1;
  if (connect(connection, address->ai_addr, address->ai_addrlen) == 0) return connection;
  close(connection);
  return -1;
}

// A listening socket; ends the program when the address is taken.
inline int listen_at(const char* address, uint16_t* port) {
  addrinfo* found = resolve(address);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (listener < 0 || bind(listener, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener, 16) != 0) {
    die(kOutput, "cannot listen at %s: %s", address, strerror(errno));
  }
  freeaddrinfo(found);
  // A client may be gone again before it is accepted.
  fcntl(listener, F_SETFL, O_NONBLOCK);
  sockaddr_in bound = {};
  socklen_t size = sizeof bound;
  getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size);
  *port = ntohs(bound.sin_port);
  return listener;
}

enum Waited { kReadable, kTimeIsOver, kInterrupted };

inline Waited wait_for(int socket, int milliseconds) {
  pollfd state = {socket, POLLIN, 0};
  int ready = poll(&state, 1, milliseconds);
  return ready > 0 ? kReadable : ready == 0 ? kTimeIsOver : kInterrupted;
}
