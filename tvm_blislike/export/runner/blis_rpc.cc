// A TVM RPC server without Python: a client uploads libraries, calls and times them here.
//
// Each connection is a process of its own in a folder of its own from its first byte on, so that
// one that is silent keeps nobody waiting, and a crash costs that session only. Whoever reaches the
// port can run code here: listen on a trusted network only.

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "session.h"
#include "sockets.h"
#include "tracker.h"

static const char kHelp[] =
    "usage: blis_rpc [OPTIONS] HOST:PORT\n"
    "Serves TVM RPC sessions at this address; port 0 takes a free one.\n"
    "  --key KEY            key that clients call with (default: arm)\n"
    "  --tracker HOST:PORT  offer this board to an RPC tracker; then one session at a time\n"
    "Who can reach the port can run code on this board.\n";

// In which a client has to say what it wants.
constexpr unsigned kGreetingSeconds = 10;

// Seconds after which the client wants the session ended, 0 for never.
static unsigned timeout_of(const char* request) {
  const char* option = strstr(request, "-timeout=");
  double seconds = option != nullptr ? atof(option + strlen("-timeout=")) : 0;
  return seconds > 0 && seconds < 1e6 ? static_cast<unsigned>(seconds + 0.999) : 0;
}

static void remove_folder(const char* path) {
  DIR* folder = opendir(path);
  while (dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char* inner = joined(path, entry->d_name);
    if (unlink(inner) != 0) remove_folder(inner);
    free(inner);
  }
  if (folder != nullptr) closedir(folder);
  rmdir(path);
}

// Agrees with a client on the key; false for strangers.
static bool greet(int connection, const char* key, const char* match, unsigned* timeout) {
  const int32_t magic = 0xff271;
  const int32_t mismatch = magic + 2;
  int32_t called = 0;
  char request[1024], wanted[300], answer[300];
  if (!receive(connection, &called, sizeof called) || called != magic) return false;
  if (!receive_text(connection, request, sizeof request)) return false;
  *timeout = timeout_of(request);
  if (char* space = strchr(request, ' ')) *space = '\0';
  snprintf(wanted, sizeof wanted, "client:%s", match);
  if (strcmp(request, wanted) != 0) {
    send_int(connection, mismatch);
    return false;
  }
  snprintf(answer, sizeof answer, "server:%s", key);
  return send_int(connection, magic) && send_text(connection, answer);
}

[[noreturn]] static void serve(int connection, unsigned timeout) {
  if (chdir(session_folder) != 0) _exit(kOutput);
  alarm(timeout);
  offer_session_functions();
  call(kModel, "serving", global_function("rpc.ServerLoop"), int64_t{connection});
  _exit(0);
}

struct Session {
  pid_t process;
  char folder[256];
  bool* agreed;  // shared with the process: whether its client is no stranger
};

static Array<Session> sessions;

// Forgets the sessions that ended; returns whether one of them was a client's.
static bool collect() {
  int status = 0;
  bool clients = false;
  pid_t ended;
  while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
    for (Session& session : sessions) {
      if (session.process != ended) continue;
      clients = clients || *session.agreed;
      munmap(session.agreed, sizeof(bool));
      remove_folder(session.folder);
      session = sessions[--sessions.size];
      break;
    }
    if (WIFSIGNALED(status)) fprintf(stderr, "a session ended: %s\n", strsignal(WTERMSIG(status)));
  }
  return clients;
}

static bool is_serving() {
  for (Session& session : sessions) {
    if (*session.agreed) return true;
  }
  return false;
}

[[noreturn]] static void attend(int connection, const char* key, const char* match, bool* agreed) {
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  signal(SIGCHLD, SIG_DFL);
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(kGreetingSeconds);
  unsigned timeout = 0;
  if (!greet(connection, key, match, &timeout)) _exit(0);
  *agreed = true;
  alarm(0);
  signal(SIGALRM, SIG_DFL);
  serve(connection, timeout);
}

static void open_session(int listener, int connection, const char* key, const char* match) {
  Session session = {};
  const char* base = getenv("TMPDIR");
  base = base != nullptr && strlen(base) < 200 ? base : "/tmp";
  sprintf(session.folder, "%s/blis_rpc_XXXXXX", base);
  if (mkdtemp(session.folder) == nullptr) {
    fprintf(stderr, "cannot make a folder in %s: %s\n", base, strerror(errno));
    return;
  }
  void* shared = mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  session.agreed = static_cast<bool*>(shared);
  strcpy(session_folder, session.folder);
  session.process = shared != MAP_FAILED ? fork() : -1;
  if (session.process == 0) {
    close(listener);
    attend(connection, key, match, session.agreed);
  }
  if (session.process > 0) {
    sessions.push(session);
  } else {
    fprintf(stderr, "cannot start a session: %s\n", strerror(errno));
    if (shared != MAP_FAILED) munmap(shared, sizeof(bool));
    remove_folder(session.folder);
  }
}

static void end(int) {
  for (Session& session : sessions) kill(session.process, SIGKILL);
  for (Session& session : sessions) remove_folder(session.folder);
  _exit(0);
}

int main(int argc, char** argv) {
  const char* address = nullptr;
  const char* key = "arm";
  const char* tracker_address = nullptr;
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc;
    if (strcmp(argv[i], "--help") == 0) {
      fputs(kHelp, stdout);
      return 0;
    } else if (strcmp(argv[i], "--key") == 0 && more) {
      key = argv[++i];
    } else if (strcmp(argv[i], "--tracker") == 0 && more) {
      tracker_address = argv[++i];
    } else if (argv[i][0] != '-' && address == nullptr) {
      address = argv[i];
    } else {
      die(kUsage, "unexpected %s\n%s", argv[i], kHelp);
    }
  }
  if (address == nullptr) die(kUsage, "no address\n%s", kHelp);
  if (strlen(key) > 200 || strpbrk(key, " \"\\") != nullptr) die(kUsage, "%s is no key", key);

  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, end);
  signal(SIGINT, end);
  // Only to wake up when a session ends.
  signal(SIGCHLD, [](int) {});
  uint16_t port = 0;
  int listener = listen_at(address, &port);
  printf("blis_rpc: port %d, key %s\n", port, key);
  fflush(stdout);
  Tracker tracker(tracker_address, key, port);
  tracker.offer();
  for (;;) {
    // Measurements must not disturb each other; a tracker's clients come one by one.
    if (collect()) tracker.offer();
    Waited waited = wait_for(listener, 2000);
    if (waited == kTimeIsOver && !is_serving()) tracker.check();
    int connection = waited == kReadable ? accept(listener, nullptr, nullptr) : -1;
    if (connection < 0) continue;
    int on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    open_session(listener, connection, key, tracker.match());
    close(connection);
  }
}
