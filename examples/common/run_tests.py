#!/usr/bin/python3
"""Run test_*.py of the current directory, and print TAP.

The tests find their own directory's modules and those of this one.
"""

import sys
import unittest

from tap import TAPTestRunner


def main():
    tests = unittest.defaultTestLoader.discover(".")
    runner = TAPTestRunner()
    runner.set_stream(True)
    result = runner.run(tests)
    if result.testsRun == 0:
        sys.exit("no test was found")
    sys.exit(not result.wasSuccessful())


main()
