#include "scan.h"
SCANS(8, double, FloatSum)
