from asyncckpt.formats.sdnb import SdnbFormat
from asyncckpt.formats.sdz import SdzFormat
from asyncckpt.testing.format_contract import FormatContract


class _R(FormatContract):
    def reading_format(self):
        return self.make_format()


class TestSdnb(_R):
    def make_format(self):
        return SdnbFormat()


class TestSdnbAppended(_R):
    def make_format(self):
        return SdnbFormat(inline_below=0)


class TestSdnbShards(_R):
    def make_format(self):
        return SdnbFormat(shards=3)


class TestSdz(_R):
    def make_format(self):
        return SdzFormat()


class TestSdzStored(_R):
    def make_format(self):
        return SdzFormat(compress=False)


class TestSdzShards(_R):
    def make_format(self):
        return SdzFormat(shards=3)
