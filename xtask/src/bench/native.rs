//! Competitors of Rust kernels: hand-written kernels in CUDA C, which `nvcc` compiles at run time.

use super::setup::Setup;
use anyhow::{Context, Result, ensure};
use bytemuck::Pod;
use cudarc::driver::{CudaContext, result, sys};
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use vmarray::device::Device;

/// The CUDA C kernels, compiled and loaded on the first GPU.
pub struct Native {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
}

/// A buffer in GPU memory, initially zero.
pub struct NativeMemory {
    context: Arc<CudaContext>,
    bytes: usize,
    /// The address of the buffer's first byte.
    pub address: sys::CUdeviceptr,
}

/// Returns the compiler, if it is on `PATH` or in NVIDIA's usual folder.
fn compiler() -> Option<PathBuf> {
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    crate::tools::find("nvcc").or_else(|| usual.is_file().then_some(usual))
}

impl Native {
    /// Compiles the CUDA kernels in `text`; `None` if not all devices are CUDA GPUs, or without a compiler.
    pub fn new(setup: &Setup, text: &str) -> Result<Option<Self>> {
        // SAFETY: checks whether the driver's library can be loaded.
        let present = unsafe { sys::is_culib_present() };
        let on_card = present && setup.devices.iter().all(|device| device.info().backend == "cuda");
        let Some(compiler) = compiler().filter(|_| on_card) else { return Ok(None) };
        let context = CudaContext::new(0)?;
        let capability = [
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|which| context.attribute(which));
        let [major, minor] = capability;
        let target = format!("-arch=sm_{}{}", major?, minor?);
        let folder = std::env::temp_dir().join(format!("vmarray-kernels-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (source, binary) = (folder.join("kernels.cu"), folder.join("kernels.cubin"));
        let compiled = std::fs::write(&source, text).map_err(anyhow::Error::from).and_then(|()| {
            let mut command = Command::new(&compiler);
            command.args(["-O3", "-cubin", &target, "-o"]).arg(&binary).arg(&source);
            let output = command.output().with_context(|| format!("cannot start {}", compiler.display()))?;
            ensure!(output.status.success(), "nvcc: {}", String::from_utf8_lossy(&output.stderr));
            Ok(std::fs::read(&binary)?)
        });
        std::fs::remove_dir_all(&folder)?;
        let image = compiled?;
        context.bind_to_thread()?;
        // SAFETY: the image is the compiler's output, and is read during the call alone.
        let module = unsafe { result::module::load_data(image.as_ptr().cast())? };
        Ok(Some(Self { context, module }))
    }

    /// Allocates `bytes` bytes (at least 16) of zeroed GPU memory for a kernel.
    pub fn memory(&self, bytes: usize) -> Result<NativeMemory> {
        let bytes = bytes.max(16);
        self.context.bind_to_thread()?;
        // SAFETY: the context is current; the memory has `bytes` bytes.
        let address = unsafe {
            let address = result::malloc_sync(bytes)?;
            result::memset_d8_sync(address, 0, bytes)?;
            address
        };
        Ok(NativeMemory { context: Arc::clone(&self.context), bytes, address })
    }

    /// Runs the kernel `name` and waits for its end. The arguments are words of 64 bits; a shorter parameter
    /// uses the low bits of its word. A table, if given, is the last argument.
    ///
    /// # Safety
    /// The arguments must match the kernel's declaration, and the kernel must access only the memory that the
    /// arguments point to.
    pub unsafe fn run(
        &self,
        name: &str,
        blocks: usize,
        threads: u32,
        arguments: &[u64],
        table: &[f32],
    ) -> Result<()> {
        self.context.bind_to_thread()?;
        let mut words: Vec<*mut c_void> =
            arguments.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
        words.extend((!table.is_empty()).then(|| table.as_ptr().cast_mut().cast::<c_void>()));
        // SAFETY: the module is loaded; the caller guarantees the rest.
        unsafe {
            let function = result::module::get_function(self.module, CString::new(name)?)?;
            let grid = (u32::try_from(blocks)?, 1, 1);
            result::launch_kernel(function, grid, (threads, 1, 1), 0, std::ptr::null_mut(), &mut words)?;
            result::stream::synchronize(std::ptr::null_mut())?;
        }
        Ok(())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // If the context cannot be bound, it has been destroyed before, and its module is already unloaded.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: this is the only owner, and every run was waited for.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

impl NativeMemory {
    /// Writes values to the start of the buffer.
    pub fn write<T: Pod>(&self, values: &[T]) -> Result<()> {
        ensure!(
            size_of_val(values) <= self.bytes,
            "{} bytes of values exceed the GPU buffer of {} bytes",
            size_of_val(values),
            self.bytes
        );
        self.context.bind_to_thread()?;
        // SAFETY: the memory has room for these bytes.
        unsafe { result::memcpy_htod_sync(self.address, values)? };
        Ok(())
    }

    /// Reads the first `len` values of the buffer.
    pub fn read<T: Pod>(&self, len: usize) -> Result<Vec<T>> {
        ensure!(
            len * size_of::<T>() <= self.bytes,
            "{len} values exceed the GPU buffer of {} bytes",
            self.bytes
        );
        self.context.bind_to_thread()?;
        let mut values = vec![T::zeroed(); len];
        // SAFETY: the memory has these bytes, and any bits are a value.
        unsafe { result::memcpy_dtoh_sync(&mut values, self.address)? };
        Ok(values)
    }
}

impl Drop for NativeMemory {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: this is the only owner, and every run was waited for.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
