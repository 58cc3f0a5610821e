"""Fails if a pytest report (JUnit XML) holds no test that ran: a run that skipped everything proved nothing."""

import sys
import xml.etree.ElementTree as xml

suites = list(xml.parse(sys.argv[1]).getroot().iter("testsuite"))
total, skipped = (sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "skipped"))
if total == skipped:
    reasons = sorted({case.get("message", "") for suite in suites for case in suite.iter("skipped")})
    sys.exit(f"All {total} GPU tests were skipped: {'; '.join(reasons) or 'none was found'}")
print(f"{total - skipped} GPU tests ran, {skipped} were skipped.")
