#include "scan.h"
SCANS(8, u64)
