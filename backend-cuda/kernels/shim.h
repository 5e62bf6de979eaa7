// The names of CUDA C in the kernels, so that plain clang compiles them without a toolkit.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
#define THREADS 256u
#define KERNEL extern "C" __global__ __launch_bounds__(256) void
#define INLINE static __device__ __attribute__((always_inline)) inline
INLINE u32 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
INLINE u32 block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
INLINE u32 blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
INLINE void barrier() { __syncthreads(); }
// A barrier that returns true if any thread of the block passed a nonzero value.
INLINE bool any(u32 value) { return __nvvm_bar0_or((int)value) != 0; }
INLINE void fence() { __nvvm_membar_gl(); }
INLINE u64 least(u64 a, u64 b) { return a < b ? a : b; }
// Reads of memory that no thread writes while the kernel runs.
INLINE u32x4 read16(u64 at) {
    u32 x, y, z, w;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(at));
    return u32x4{x, y, z, w};
}
// A whole number of W bytes, aligned to W.
template <u32 W> struct Word;
template <> struct Word<1> { typedef u8 T; };
template <> struct Word<2> { typedef u16 T; };
template <> struct Word<4> { typedef u32 T; };
template <> struct Word<8> { typedef u64 T; };
template <> struct Word<16> { typedef u32x4 T; };
template <u32 W> using word = typename Word<W>::T;
template <u32 W> using global_word = __attribute__((address_space(1))) word<W>;
template <u32 W> INLINE word<W> load(u64 at) { return *(const global_word<W> *)at; }
// A number that other code may write meanwhile, read once, so that the check and the use see the same value.
INLINE u64 load_once(u64 at) { return *(const volatile __attribute__((address_space(1))) u64 *)at; }
template <u32 W> INLINE void store(u64 at, word<W> value) { *(global_word<W> *)at = value; }
