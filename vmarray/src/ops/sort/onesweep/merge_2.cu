#include "merge.h"
MERGES(2)
