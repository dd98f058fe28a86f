"""A scorer whose import fails, and which leaves a thread behind that would keep its process for a minute."""

import threading
import time

threading.Thread(target=time.sleep, args=(60,)).start()
raise ValueError("no such weights")
