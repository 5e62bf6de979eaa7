//! The Python class that describes one of the machine's devices.

use std::sync::Arc;

use pyo3::prelude::*;
use vmarray::device::{AddressSpace, Device as _};
use vmarray::{AnyDevice, Discovery};

use crate::fault::{Fault, Result};

/// A device that can store arrays.
#[pyclass(frozen, module = "vmarray", from_py_object)]
#[derive(Clone)]
pub struct Device(Arc<AnyDevice>);

impl Device {
    pub fn of(device: Arc<AnyDevice>) -> Self {
        Self(device)
    }

    pub fn device(&self) -> &Arc<AnyDevice> {
        &self.0
    }
}

#[pymethods]
impl Device {
    /// Name of the device.
    #[getter]
    fn name(&self) -> String {
        self.0.info().name.clone()
    }

    /// Backend of the device: ``"cuda"``, ``"opencl"`` or ``"host"``.
    #[getter]
    fn backend(&self) -> String {
        self.0.info().backend.clone()
    }

    /// Size of the device's memory in bytes.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.0.info().total_bytes
    }

    /// Identity of the device in the machine, such as its PCI address.
    #[getter]
    fn identity(&self) -> String {
        self.0.info().identity.clone()
    }

    /// The CUDA driver's number of the GPU; None for other devices.
    #[getter]
    fn ordinal(&self) -> Option<u32> {
        match self.0.addresses()?.space() {
            AddressSpace::Cuda { ordinal } => Some(ordinal),
            _ => None,
        }
    }

    fn __repr__(&self) -> String {
        format!("<vmarray.Device {}>", self.0.info())
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

/// Opens the devices that a filter selects, or the default ones. A process opens each GPU once, which may
/// take a second.
fn opened(filter: &str) -> Result<Vec<Arc<AnyDevice>>> {
    Ok(if filter.is_empty() { vmarray::devices()? } else { Discovery::new().select(filter)?.open()? })
}

/// Returns the devices that `filter` selects; the default devices if `filter` is empty.
#[pyfunction]
#[pyo3(signature = (filter = ""))]
pub fn devices(py: Python<'_>, filter: &str) -> PyResult<Vec<Device>> {
    Ok(py.detach(|| opened(filter))?.into_iter().map(Device).collect())
}

/// Returns the devices that the Python option `devices` selects: a filter, a device, or a list of devices.
/// For `None`, returns the default devices.
pub fn chosen(py: Python<'_>, given: Option<Bound<'_, PyAny>>) -> PyResult<Vec<Arc<AnyDevice>>> {
    let Some(given) = given else { return Ok(py.detach(|| opened(""))?) };
    if let Ok(filter) = given.extract::<String>() {
        return Ok(py.detach(|| opened(&filter))?);
    }
    let devices: Vec<Device> = match given.extract::<Device>() {
        Ok(device) => vec![device],
        Err(_) => given.extract()?,
    };
    if devices.is_empty() {
        return Err(Fault::from(vmarray::Error::from(vmarray::ErrorKind::NoDevices)).into());
    }
    Ok(devices.into_iter().map(|device| device.0).collect())
}
