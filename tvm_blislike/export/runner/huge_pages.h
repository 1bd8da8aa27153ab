// Moves the memory of this process onto huge pages, as far as Linux can: with pages of 4 KiB the
// weights and workspaces of a model need more entries than a core's TLBs have. Called once, after
// the first run, when everything is allocated.
#pragma once

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Linux 6.1; older C libraries have no name for it.
constexpr int kMadvCollapse = 25;
// Of each heap: address space, not memory.
constexpr size_t kMostPadding = 4 << 20;

// 0 where the kernel has no huge pages.
inline size_t huge_page_bytes() {
  FILE* file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
  if (file == nullptr) return 0;
  size_t bytes = 0;
  if (fscanf(file, "%zu", &bytes) != 1) bytes = 0;
  fclose(file);
  return bytes;
}

// Has the heaps of all threads grow by more than a huge page, and hold what would be mappings of its
// own: only whole huge pages inside one mapping can be moved. To be called before the first thread.
inline void keep_together() {
#ifdef __GLIBC__
  size_t bytes = huge_page_bytes();
  // 32 MiB and more where pages are larger than 4 KiB: nobody wants that much for each thread.
  if (bytes == 0 || bytes > kMostPadding / 2) return;
  mallopt(M_TOP_PAD, static_cast<int>(2 * bytes));
  // The most that glibc takes; above it, mappings are large enough by themselves.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

inline void move_to_huge_pages() {
  size_t bytes = huge_page_bytes();
  FILE* maps = bytes != 0 ? fopen("/proc/self/maps", "r") : nullptr;
  if (maps == nullptr) return;
  char line[1024], access[5];
  size_t start, end, inode;
  size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  while (fgets(line, sizeof line, maps) != nullptr) {
    if (sscanf(line, "%zx-%zx %4s %*x %*s %zu", &start, &end, access, &inode) != 4) continue;
    if (strcmp(access, "rw-p") != 0 || inode != 0) continue;
    // A reservation of addresses, such as that of sanitizers.
    if (end - start > memory) continue;
    // Block by block: one that cannot be moved shall not keep the others.
    for (size_t at = (start + bytes - 1) / bytes * bytes; at + bytes <= end; at += bytes) {
      madvise(reinterpret_cast<void*>(at), bytes, kMadvCollapse);
    }
  }
  fclose(maps);
}
