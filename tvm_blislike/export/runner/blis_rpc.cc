// A TVM RPC server without Python: a client uploads libraries, calls and times them here.
//
// Each session is a process of its own in a folder of its own, so that a crash costs that session
// only. Whoever reaches the port can run code here: listen on a trusted network only.

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "sockets.h"
#include "tracker.h"
#include "tvm_c.h"

static const char kHelp[] =
    "usage: blis_rpc [OPTIONS] HOST:PORT\n"
    "Serves TVM RPC sessions at this address; port 0 takes a free one.\n"
    "  --key KEY            key that clients call with (default: arm)\n"
    "  --tracker HOST:PORT  offer this board to an RPC tracker; then one session at a time\n"
    "Who can reach the port can run code on this board.\n";

static char session_folder[256];

static int return_text(const char* text, TVMFFIAny* result) {
  TVMFFIByteArray bytes = bytes_of(text);
  return TVMFFIStringFromByteArray(&bytes, result);
}

static int refuse(const char* message) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", message);
  return -1;
}

// Path of a file of the session; false for one that leads out of its folder.
static bool session_path(const TVMFFIAny& name, char* path, size_t room) {
  char* text = text_of(name);
  bool inside = strstr(text, "..") == nullptr && text[0] != '/';
  inside = inside && snprintf(path, room, "%s/%s", session_folder, text) < static_cast<int>(room);
  free(text);
  return inside;
}

static int work_path(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512];
  return session_path(args[0], path, sizeof path) ? return_text(path, result)
                                                  : refuse("a path outside of the session");
}

static int load_module(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512];
  if (!session_path(args[0], path, sizeof path)) return refuse("a path outside of the session");
  TVMFFIAny argument = as_any(static_cast<const char*>(path));
  Value load = global_function("ffi.ModuleLoadFromFile");
  return TVMFFIFunctionCall(load.any.v_obj, &argument, 1, result);
}

static int list_files(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512], names[8192] = "";
  if (!session_path(args[0], path, sizeof path)) return refuse("a path outside of the session");
  DIR* folder = opendir(path);
  size_t used = 0;
  while (dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    if (entry->d_name[0] == '.' || used + strlen(entry->d_name) + 2 > sizeof names) continue;
    used += static_cast<size_t>(sprintf(names + used, "%s%s", used != 0 ? "," : "", entry->d_name));
  }
  if (folder != nullptr) closedir(folder);
  return return_text(names, result);
}

// Fills a tensor with small numbers: what MetaSchedule's runner measures with.
static int fill_randomly(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* tensor = args[0].type_index == kTVMFFITensor
                               ? TVMFFITensorGetDLTensorPtr(args[0].v_obj)
                               : static_cast<const DLTensor*>(args[0].v_ptr);
  char* data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  size_t count = 1;
  for (int i = 0; i < tensor->ndim; i++) count *= static_cast<size_t>(tensor->shape[i]);
  size_t bytes = count * tensor->dtype.bits / 8;
  uint32_t state = 1;
  bool floats = tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32;
  // Any other type: bytes from 0 to 3 are small, finite numbers of every integer and float type.
  for (size_t i = 0; i < (floats ? count : bytes); i++) {
    state = state * 1664525u + 1013904223u;
    if (floats) {
      reinterpret_cast<float*>(data)[i] = static_cast<float>(state >> 8) / 16777216.0f;
    } else {
      data[i] = static_cast<char>(state >> 30);
    }
  }
  return 0;
}

static void offer_function(const char* name, TVMFFISafeCallType implementation) {
  Value function = as_function(nullptr, implementation);
  TVMFFIByteArray bytes = bytes_of(name);
  if (TVMFFIFunctionSetGlobal(&bytes, function.any.v_obj, 1) != 0) die_of_tvm(kModel, name);
}

// Seconds after which the client wants the session ended, 0 for never.
static unsigned timeout_of(const char* request) {
  const char* option = strstr(request, "-timeout=");
  double seconds = option != nullptr ? atof(option + strlen("-timeout=")) : 0;
  return seconds > 0 && seconds < 1e6 ? static_cast<unsigned>(seconds + 0.999) : 0;
}

[[noreturn]] static void serve(int connection, unsigned timeout) {
  if (chdir(session_folder) != 0) _exit(kOutput);
  alarm(timeout);
  offer_function("tvm.rpc.server.workpath", work_path);
  offer_function("tvm.rpc.server.load_module", load_module);
  offer_function("tvm.rpc.server.listdir", list_files);
  offer_function("tvm.contrib.random.random_fill", fill_randomly);
  offer_function("tvm.contrib.random.random_fill_for_measure", fill_randomly);
  call(kModel, "serving", global_function("rpc.ServerLoop"), int64_t{connection});
  _exit(0);
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

struct Session {
  pid_t process;
  char folder[256];
};

static Array<Session> sessions;

// Takes note of sessions that ended; waits for them when told to.
static void collect(bool wait) {
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(-1, &status, wait ? 0 : WNOHANG)) > 0) {
    for (Session& session : sessions) {
      if (session.process != ended) continue;
      remove_folder(session.folder);
      session = sessions[--sessions.size];
      break;
    }
    if (WIFSIGNALED(status)) fprintf(stderr, "a session ended: %s\n", strsignal(WTERMSIG(status)));
  }
}

static void open_session(int listener, int connection, unsigned timeout) {
  Session session = {};
  const char* base = getenv("TMPDIR");
  base = base != nullptr && strlen(base) < 200 ? base : "/tmp";
  sprintf(session.folder, "%s/blis_rpc_XXXXXX", base);
  if (mkdtemp(session.folder) == nullptr) {
    fprintf(stderr, "cannot make a folder in %s: %s\n", base, strerror(errno));
    return;
  }
  strcpy(session_folder, session.folder);
  session.process = fork();
  if (session.process == 0) {
    close(listener);
    serve(connection, timeout);
  }
  if (session.process < 0) remove_folder(session.folder);
  if (session.process > 0) sessions.push(session);
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
  uint16_t port = 0;
  int listener = listen_at(address, &port);
  printf("blis_rpc: port %d, key %s\n", port, key);
  fflush(stdout);
  Tracker tracker(tracker_address, key, port);
  tracker.offer();
  for (;;) {
    collect(false);
    if (!readable_within(listener, 2000)) {
      tracker.check();
      continue;
    }
    int connection = accept(listener, nullptr, nullptr);
    if (connection < 0) continue;
    int on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    unsigned timeout = 0;
    if (greet(connection, key, tracker.match(), &timeout)) {
      open_session(listener, connection, timeout);
      // Measurements must not disturb each other; a tracker's clients come one by one.
      if (tracker.exists()) {
        collect(true);
        tracker.offer();
      }
    }
    close(connection);
  }
}
