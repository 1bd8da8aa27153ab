// The part of TVM's RPC tracker protocol that a server needs to offer itself to clients.
#pragma once

#include <time.h>

#include "sockets.h"

class Tracker {
 public:
  // Without an address there is no tracker, and clients call with the plain key.
  Tracker(const char* address, const char* key, uint16_t port)
      : address_(address != nullptr ? resolve(address) : nullptr), key_(key), port_(port) {
    snprintf(match_, sizeof match_, "%s", key);
  }

  bool exists() const { return address_ != nullptr; }

  // The key that the next client has to call with.
  const char* match() const { return match_; }

  // Offers the server under a fresh key; waits until the tracker is there.
  void offer() {
    if (!exists()) return;
    new_match();
    char message[512];
    snprintf(message, sizeof message, "[3, \"%s\", [%d, \"%s\"], null]", key_, port_, match_);
    while (!(connected() && ask(message))) hang_up();
    missed_ = 0;
  }

  // Renews the offer when a client took it and never called. To be called every few seconds.
  void check() {
    if (!exists()) return;
    if (!ask("[7]")) {
      hang_up();
      offer();
    } else if (strstr(reply_, match_) == nullptr && ++missed_ > 2) {
      offer();
    }
  }

 private:
  void new_match() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(match_, sizeof match_, "%s:%d.%lld.%ld", key_, static_cast<int>(getpid()),
             static_cast<long long>(now.tv_sec), now.tv_nsec);
  }

  bool connected() {
    const int32_t magic = 0x2f271;
    if (connection_ >= 0) return true;
    connection_ = connect_to(address_);
    // One that accepts and never answers is as good as none.
    timeval patience = {10, 0};
    setsockopt(connection_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int32_t answer = 0;
    char message[512];
    snprintf(message, sizeof message, "[5, {\"key\": \"server:%s\", \"addr\": [null, %d]}]", key_,
             port_);
    return connection_ >= 0 && send_int(connection_, magic) &&
           receive(connection_, &answer, sizeof answer) && answer == magic && ask(message);
  }

  bool ask(const char* message) {
    return connection_ >= 0 && send_text(connection_, message) &&
           receive_text(connection_, reply_, sizeof reply_);
  }

  void hang_up() {
    if (connection_ >= 0) close(connection_);
    connection_ = -1;
    sleep(1);
  }

  addrinfo* address_;
  const char* key_;
  uint16_t port_;
  int connection_ = -1;
  int missed_ = 0;
  char match_[256];
  char reply_[65536];
};
