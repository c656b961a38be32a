// Threads that fill maps of their own and, now and then, add to one that they share.
//
// usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kThreads = 4;
std::mutex mutex;
std::map<std::uint64_t, std::uint64_t> shared;
std::atomic<std::uint64_t> total{0};

std::uint64_t once(std::uint64_t seed)
{
    std::unordered_map<std::string, std::uint64_t> counts;
    std::vector<double> values;
    std::uint64_t state = seed * 2 + 1;
    for (int i = 0; i < 20000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        counts["key-" + std::to_string(state >> 52)] += state >> 40;
        values.push_back(static_cast<double>(state >> 33));
    }
    std::sort(values.begin(), values.end());
    std::uint64_t sum = 0;
    for (auto const &[key, count] : counts)
        sum += key.size() * count;
    for (std::size_t i = 0; i < values.size(); i += 16)
        sum += static_cast<std::uint64_t>(values[i]) * i;
    return sum;
}

void work(int number, long rounds)
{
    for (long i = 0; rounds == 0 || i < rounds; i++) {
        std::uint64_t sum = once(static_cast<std::uint64_t>(number) * 1000 + i % 1000);
        total += sum;
        std::lock_guard<std::mutex> lock(mutex);
        shared[sum % 1009] += sum;
    }
}

} // namespace

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? std::atol(argv[1]) : 0;
    std::vector<std::thread> threads;
    for (int number = 1; number < kThreads; number++)
        threads.emplace_back(work, number, rounds);
    work(0, rounds);
    for (auto &thread : threads)
        thread.join();
    std::uint64_t sum = total;
    for (auto const &[key, count] : shared)
        sum = sum * 31 + key + count;
    std::printf("%016llx\n", static_cast<unsigned long long>(sum));
}
