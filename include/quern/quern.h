/* Everything stable in one include. */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include <quern/context.h>
#include <quern/device.h>
#include <quern/exec.h>
#include <quern/format.h>
#include <quern/model.h>
#include <quern/op.h>
#include <quern/plan.h>
#include <quern/quantize.h>
#include <quern/status.h>
#include <quern/tensors.h>
#include <quern/text.h>
#include <quern/version.h>
#include <quern/view.h>

#endif
