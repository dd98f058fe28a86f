"""grpokit-ocr: the reward `ocr`, how well a picture shows the text that its prompt quotes.

`plugin` announces the reward, `reward` is the reward, `scoring` compares texts (pure), `engine` chooses who reads the
pictures: `rapid`, `easy` or `tesseract`. Nothing is imported here, so that listing plugins stays fast.
"""
