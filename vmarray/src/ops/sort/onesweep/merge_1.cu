#include "merge.h"
MERGES(1)
